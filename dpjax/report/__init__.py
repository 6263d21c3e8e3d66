"""Pictures, pages and comparisons of runs, of released and public values only."""

from dpjax.report.compare import compare
from dpjax.report.page import write
from dpjax.report.pictures import pictures

__all__ = ["compare", "pictures", "write"]
