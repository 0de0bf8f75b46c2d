"""Any gymnasium environment whose observations are text, or that draws itself as text."""
