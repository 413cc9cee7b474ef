"""Draws what a command printed as an SVG, for the documents: python3 scripts/terminal_svg.py 'tare next' < output > picture.svg"""
import html
import sys

SIZE, WIDTH, LINE, PAD = 13, 7.83, 18, 16

def main():
    lines = ["$ " + sys.argv[1]] + sys.stdin.read().rstrip("\n").split("\n")
    w = PAD * 2 + WIDTH * max(len(l) for l in lines)
    h = PAD * 2 + LINE * len(lines)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{w:.0f}" height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}">')
    print(f'<rect width="100%" height="100%" rx="8" fill="#14171f"/>')
    print(f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{SIZE}" fill="#d7dae0" xml:space="preserve">')
    for i, l in enumerate(lines):
        colour = ' fill="#8fd19e"' if i == 0 else ""
        text = html.escape(l)
        length = f' textLength="{WIDTH * len(l):.1f}"' if l else ""
        print(f'<text x="{PAD}" y="{PAD + LINE * i + SIZE}"{colour}{length}>{text}</text>')
    print("</g></svg>")

main()
