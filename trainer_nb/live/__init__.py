"""Progress, reports, runs in the background, and the dashboard."""
