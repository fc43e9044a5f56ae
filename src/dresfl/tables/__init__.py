"""People's own tables: an agreed schema, and rows of it from CSV, Parquet, Arrow, pandas and NumPy archives.

A schema says which columns there are, what they may hold, and how each becomes numbers. All clients agree on it before
anybody reads a row, so equal rows become equal numbers everywhere. Images in folders are read here, too.
"""

from .checking import Finding, Report, check_table
from .draft import draft
from .encoding import Encoder
from .images import image_classes, read_image_folder
from .reading import Table, batches
from .rows import ClientRows, read_data_set, read_integers, split_by_client
from .schema import Column, Label, Schema, load_schema, parse_schema
