"""Random tokens for nanoGPT-jax, a stand-in for `tiktoken`, and two lines that newer flax and JAX want otherwise.

    python prepare.py SOURCE PYTHON

`tiktoken` loads its vocabulary from the network; the program only prints a sample with it.
"""

import array
import pickle
import random
import subprocess
import sys
from pathlib import Path

MENDED = {
    "self.c_attn(x).split(3, axis=-1)": "jnp.split(self.c_attn(x), 3, axis=-1)",
    "freeze(path_aware_map(partition_fn, params))": "path_aware_map(partition_fn, params)",
}
TOKENIZER = """class Encoding:
    def decode(self, tokens):
        return " ".join(map(str, tokens))


def get_encoding(name):
    return Encoding()
"""

source, python = Path(sys.argv[1]), sys.argv[2]
model = source / "model.py"
text = model.read_text()
for old, new in MENDED.items():
    text = text.replace(old, new)
model.write_text(text)

random.seed(0)
tokens = array.array("H", [(i * 7 + random.randrange(8)) % 256 for i in range(200_000)])
folder = source / "data/random"
folder.mkdir(parents=True, exist_ok=True)
for name in ("train", "val"):
    (folder / f"{name}.bin").write_bytes(tokens.tobytes())
(folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))

ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
site = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
(site / "tiktoken").mkdir(exist_ok=True)
(site / "tiktoken/__init__.py").write_text(TOKENIZER)
