"""The page's endpoints from a notebook: `python app.py`, then run these cells. LANTERNPP_URL names another address."""

# %% Decode one picture; every knob of the page is an argument
import os

from gradio_client import Client

client = Client(os.environ.get("LANTERNPP_URL", "http://127.0.0.1:7860"), verbose=False)
picture, stats, trace = client.predict(
    prompt="red apple, 3d", method="lanternpp", tree="4/2.1.0.0", k=10, bound=2.0, seed=7, api_name="/generate"
)
print(picture, stats["seconds"], "s,", stats["accepted_length"], "tokens a step,", stats["device"])

# %% Look inside: each step of the run, then what one verdict compared
run = client.predict(run_id=stats["run_id"], api_name="/inspect")
longest = max(range(1, len(run["steps"])), key=lambda i: len(run["steps"][i]["tokens"]))
node = client.predict(run_id=stats["run_id"], step=longest, node=1, api_name="/inspect")
ratio = node["r"] / node["q"] if node["q"] else 0.0
print(f"step {longest}, draft 1: q = {node['q']:.3f}, r = {node['r']:.3f}, r/q = {ratio:.3f}, u = {node['u']:.3f}")

# %% What would another draft tree bring, from the acceptance measured in the runs so far?
for tree in ("4", "4/2.1.0.0", "3,2,1"):
    found = client.predict(tree=tree, method="lanternpp", api_name="/tree")
    print(tree, found["nodes"], "drafts:", found["expected_accepted_length"], "tokens a step expected")

# %% Which codes look alike, and the picture with every token exchanged for its 5th neighbour
code = run["steps"][longest]["tokens"][0]
alike, swapped = client.predict(code=code, k=5, run=stats["run_id"], j=5, api_name="/codebook")
print("nearest to code", code, alike["neighbours"], alike["psnr"], "dB; random codes", alike["psnr_random"], "dB")
