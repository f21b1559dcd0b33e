"""Runs a file of API tests with the Python of .venv: run.py SOURCE_ROOT FAKE_SERVER EXPERTD FILE GRAMMAR_GEN. Exit 77 (skip) without it."""
import os
import subprocess
import sys

root, fake, daemon = (os.path.abspath(path) for path in sys.argv[1:4])
name = sys.argv[4]
python = os.path.join(root, ".venv", "bin", "python")
needs = "import openai, pytest" + (", jsonschema" if name in ("test_guided.py", "test_schema.py", "test_think.py") else "") + (", anthropic" if name == "test_messages.py" else "")
if not os.path.exists(python) or subprocess.call([python, "-c", needs], stderr=subprocess.DEVNULL):
    print("skipped: no .venv with tests/requirements.txt; ./dev setup makes it")
    sys.exit(77)
env = dict(os.environ, API_FAKE=fake, EXPERTD=daemon, GRAMMAR_GEN=os.path.abspath(sys.argv[5]), EXPERTD_SOURCE_ROOT=root, PYTHONDONTWRITEBYTECODE="1")
here = os.path.join(root, "tests", "api")
sys.exit(subprocess.call([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", os.path.join(here, name)], env=env, cwd=here))
