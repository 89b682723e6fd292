"""Starts the web app: builds the page and serves it, on the port named by GRADIO_SERVER_PORT or the first free one."""

from app import build_demo, launch_options

demo = build_demo()

if __name__ == "__main__":
    demo.launch(**launch_options())
