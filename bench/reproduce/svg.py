"""What the pictures have in common that are written as SVG text, without a drawing library.

The same records give the same bytes on every machine, so that `reproduce findings --check` can tell
whether the committed files are today's.
"""

from html import escape

INK, PALE = "#1f2328", "#d0d7de"  # of text and marks, and of lines behind them


def head(
    title: str,
    width: int,
    height: int,
    *,
    letters: int = 13,
    title_letters: int = 15,
    place: tuple[int, int] = (16, 26),
) -> list[str]:
    """The first lines of a picture: its size, a white ground, and its title.

    width, height and place, which is where the title begins, in pixels; letters and title_letters:
    the heights of the letters, in pixels.
    """
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{letters}" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{place[0]}" y="{place[1]}" font-size="{title_letters}" font-weight="bold">'
        f"{escape(title)}</text>",
    ]
