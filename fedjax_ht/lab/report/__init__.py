"""Results for readers: tables, plots, maps, statistics and the page of a run."""
