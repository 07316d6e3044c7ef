"""Tables and charts as text, HTML and SVG; imports no other chapter."""
