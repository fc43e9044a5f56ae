"""`dresfl bench`: every stage compared with its limit, its growth and memory; the page and picture of the results."""

from .page import Table, page, read_results, tables
from .picture import picture_format, plot
from .run import FULL, QUICK, Settings, measure
