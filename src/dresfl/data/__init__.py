"""Data sets and how clients share them out: `load` reads what a user already has, partitions cut it up.

Nothing here downloads, and nothing is trusted: files are parsed with their lengths checked before memory is
spent on them, and no pickle gets to name code of its own choosing.
"""

from .dataset import DataSet, Origin, Split
from .official import Finding, check_folder, verdict_of
from .partition import Partition, partition
from .pieces import map_rows
from .rows import check_class_weights, flat_inputs, integer_rows, integer_type, no_rows, weighted_rows
from .sources import Published, Source, data_set_label, image_source, load, sources
