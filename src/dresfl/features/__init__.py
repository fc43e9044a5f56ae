"""What a frozen network makes of images, and what each client does to it alone before sharing.

Everything here is public and per sample: an extractor that all parties hold, then a power, a norm and two constants.
No client needs another's rows for any of it, so it leaks nothing and changes nothing in the protocol.
"""

from dresfl.features.cache import only_one
from dresfl.features.pieces import in_pieces
from dresfl.features.settings import Features
from dresfl.features.split import Watch, featured
from dresfl.features.transforms import transformed
from dresfl.features.vgg import VGG19, load_vgg19

__all__ = ["Features", "Watch", "featured", "transformed", "in_pieces", "only_one", "VGG19", "load_vgg19"]
