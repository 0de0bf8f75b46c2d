"""MiniWoB++: small web pages with one task each, in a headless Chromium."""
