"""Statistics of what a store holds: computed by the reader itself, kept in files, and found there by ``mean`` and ``stddev``."""
