"""Linear layers: a product with a weight, by the path that suits machine, element type and wanted precision."""

from paged_core.model.linear.choice import Linears, missing_linear
from paged_core.model.linear.path import Linear, Product
from paged_core.model.linear.plain import PlainLinear

__all__ = ["Linear", "Linears", "PlainLinear", "Product", "missing_linear"]
