"""Starts the web app: builds the page and serves it, on the port named by GRADIO_SERVER_PORT or the first free one.

`python app.py --model NAME_OR_FOLDER` starts with another model than the bundled one, as LANTERNPP_MODEL does. `--mode
graph` (CUDA graphs) or `--mode compile` is for the host to choose: all runs, the baseline's too, then work in it.
"""

import sys

from app import build_demo, command_line, launch_options

demo = build_demo(**(command_line(sys.argv[1:]) if __name__ == "__main__" else {}))

if __name__ == "__main__":
    demo.launch(**launch_options())
