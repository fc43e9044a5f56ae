"""What a frozen network makes of images, and what each client does to it alone before sharing.

Everything here is public and per sample: an extractor that all clients hold, then a power, a norm and two constants.
No client needs another's rows for any of it, so it leaks nothing and changes nothing in the protocol.
"""

from .official import check_weights
from .settings import Features
from .split import cache_folder, extract_features
