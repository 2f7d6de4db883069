"""Reports: figures and tables for people."""
