"""Studies: evaluations in progress, and what keeps them through crashes."""

from bpsearch.study.comparison import ComparisonStudy
from bpsearch.study.journal import Event, Journal
from bpsearch.study.requests import Request
from bpsearch.study.sqlite import SQLiteJournal
from bpsearch.study.study import Study

__all__ = ["ComparisonStudy", "Event", "Journal", "Request", "SQLiteJournal", "Study"]
