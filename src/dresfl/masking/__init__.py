"""Masks that clients make alike from shared seeds: families of seeds, their certificates, and their expansion."""

from .blinding import Blinding
from .certificate import certify
from .codewords import codewords
from .families import zero_sum_family
from .hidden_families import HiddenFamilies, certify_hidden, hidden_families, mask_sets
from .hidden_masks import HiddenMasks, mask_sum, pad
from .mask_family import MaskFamily
from .seed_sets import SeedSets
