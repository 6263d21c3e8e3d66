"""What is shown of runs: pictures, a page, comparisons. Of released values only."""

from dpjax.report.compare import compare
from dpjax.report.page import write
from dpjax.report.pictures import pictures

__all__ = ["compare", "pictures", "write"]
