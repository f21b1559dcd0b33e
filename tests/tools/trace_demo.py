#!/usr/bin/env python3
"""Uses a running demo model as people would, so that its routing can be recorded (pager.trace_file):

    expertd -c config/demo/expertd.conf --pager.trace_file=FILE &
    tests/tools/trace_demo.py --at-once 4 --requests 48 --tokens 300

Requests go through the subjects in order, eight of a kind, so that with one at a time the topic changes now and then; with several
at once different topics run side by side. Answers are as long as --tokens says with --full, else up to that.
"""
import argparse
import concurrent.futures
import json
import urllib.request

SUBJECTS = [
    # animals
    "a clever fox and a proud crow", "a lost rabbit", "an old bear in the winter wood", "two mice and a cheese",
    "a wolf who could not howl", "a hedgehog and a duck", "a cat that kept a shop", "a sparrow and an elephant",
    # the sea
    "a fisherman and a storm", "a ship of silver", "a mermaid who wanted to dance", "an island that moved",
    "a drowned bell", "a whale and a lighthouse", "the king of the herrings", "a pirate who was afraid of water",
    # castles
    "a princess in a tower", "a king with three sons", "a giant and a tailor", "a queen who never slept",
    "a knight without a horse", "a golden apple tree", "a witch in the cellar", "a prince turned into a frog",
    # kitchens
    "how to bake bread with honey", "a soup made of a stone", "a cook who salted everything twice",
    "the pancake that ran away", "a pot that would not stop", "a table that laid itself", "a birthday cake",
    "an old woman and her goose",
]


def ask(args, i):
    subject = SUBJECTS[i * args.stride % len(SUBJECTS)]
    body = {"model": "demo", "messages": [{"role": "user", "content": f"Tell me a story about {subject}."}],
            "max_tokens": args.tokens, "temperature": 0.8, "seed": i, "ignore_eos": args.full}
    request = urllib.request.Request(f"{args.url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as r:
        return json.load(r)["usage"]["completion_tokens"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--at-once", type=int, default=1)
    p.add_argument("--requests", type=int, default=32)
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--stride", type=int, default=1, help="which subject comes next; 9 mixes the topics")
    p.add_argument("--full", action="store_true", help="go on behind the end of the story")
    args = p.parse_args()
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        tokens = sum(pool.map(lambda i: ask(args, i), range(args.requests)))
    print(f"{args.requests} requests, {args.at_once} at once: {tokens} tokens")


if __name__ == "__main__":
    main()
