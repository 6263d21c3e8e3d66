"""Jobs from TOML files: what to sample, how, and for which budget."""

from dpjax.config.job import Job, load, read
from dpjax.config.keys import ConfigError

__all__ = ["ConfigError", "Job", "load", "read"]
