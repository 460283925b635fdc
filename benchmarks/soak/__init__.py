"""The soak: load on real processes that are disturbed meanwhile, then a verdict."""
