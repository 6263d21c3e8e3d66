"""Records of one's own, read by a public schema; `dpjax.records.schema` explains it."""

from dpjax.records.schema import Column, Schema
from dpjax.records.template import template

__all__ = ["Column", "Schema", "template"]
