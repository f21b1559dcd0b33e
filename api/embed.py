"""Makes a C file with one string constant of a text file: embed.py IN OUT NAME"""
import sys

text = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "w", encoding="ascii") as out:
    out.write(f"extern const char {sys.argv[3]}[];\nconst char {sys.argv[3]}[] = {{\n")
    for i in range(0, len(text), 24):
        out.write("".join(f"{b if b < 128 else b - 256}," for b in text[i : i + 24]) + "\n")
    out.write("0};\n")
