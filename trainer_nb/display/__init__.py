"""Tables and charts as text, HTML, SVG and plotly figures; imports no other chapter."""
