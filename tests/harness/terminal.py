#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Draws a program's output to a terminal as a picture in SVG.

terminal.py COLUMNS ROWS [TITLE] < OUTPUT > PICTURE
The terminal is pyte's; ROWS 0: as many as the output has lines. A program that restores the screen at its end, as
`hcablk top` does, is drawn as it was before: the output after the last switch to the usual screen is left out."""

import sys
from itertools import groupby
from xml.sax.saxutils import escape

import pyte

WIDTH, HEIGHT, SIZE, MARGIN, BAR = 8.4, 18, 14, 12, 28
FOREGROUND, BACKGROUND = "#d6d9de", "#1b1e24"
COLOURS = {
    "black": "#3a3f48", "red": "#e5686a", "green": "#7fc06f", "brown": "#e0b45c", "blue": "#6ea6e8",
    "magenta": "#c58be0", "cyan": "#63c3cc", "white": "#eceff3",
}


def colour(name, usual):
    """Return the colour of a cell from pyte's name."""
    if name == "default":
        return usual
    return COLOURS.get(name.removeprefix("bright"), f"#{name}" if len(name) == 6 else usual)


def look(cell):
    """Return a cell's foreground and background, and whether it is bold."""
    front, back = colour(cell.fg, FOREGROUND), colour(cell.bg, BACKGROUND)
    if cell.reverse:
        front, back = back, front
    return front, back, cell.bold


def spans(screen, row):
    """Yields (first column, text, look) of the parts of a line that look the same."""
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    place = 0
    for how, group in groupby(cells, look):
        text = "".join(cell.data for cell in group)
        yield place, text, how
        place += len(text)


def picture(screen, rows, title):
    """Yields the lines of the picture."""
    width, height = screen.columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN + BAR
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
           f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="\'DejaVu Sans Mono\',Menlo,Consolas,monospace" '
           f'font-size="{SIZE}" xml:space="preserve">')
    yield f'<rect width="{width:.0f}" height="{height:.0f}" rx="6" fill="{BACKGROUND}"/>'
    yield f'<text x="{width / 2:.0f}" y="20" text-anchor="middle" fill="#9aa1ac" font-size="12">{escape(title)}</text>'
    for row in range(rows):
        top = BAR + MARGIN + row * HEIGHT
        for column, text, (front, back, bold) in spans(screen, row):
            left = MARGIN + column * WIDTH
            if back != BACKGROUND:
                yield f'<rect x="{left:.1f}" y="{top}" width="{len(text) * WIDTH:.1f}" height="{HEIGHT}" fill="{back}"/>'
            # Word by word, so that columns are aligned with any font.
            for word_at, word in words(text):
                weight = ' font-weight="bold"' if bold else ""
                yield (f'<text x="{left + word_at * WIDTH:.1f}" y="{top + 13}" fill="{front}"{weight} '
                       f'textLength="{len(word) * WIDTH:.1f}">{escape(word)}</text>')
    yield "</svg>"


def words(text):
    """Yields (column, word) of a text."""
    place = 0
    for is_blank, group in groupby(text, str.isspace):
        word = "".join(group)
        if not is_blank:
            yield place, word
        place += len(word)


def main():
    columns, rows = int(sys.argv[1]), int(sys.argv[2])
    title = sys.argv[3] if len(sys.argv) > 3 else ""
    data = sys.stdin.buffer.read()
    if rows:
        # Output before and after that screen comes from `script`.
        data = data.rpartition(b"\x1b[?1049l")[0] or data
        data = data.partition(b"\x1b[?1049h")[2] or data
    else:
        # No terminal has turned newlines into carriage returns and newlines.
        data = data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        rows = data.count(b"\n") + 1
    screen = pyte.Screen(columns, rows)
    pyte.ByteStream(screen).feed(data)
    print("\n".join(picture(screen, rows, title)))


if __name__ == "__main__":
    main()
