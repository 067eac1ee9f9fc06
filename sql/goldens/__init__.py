"""The golden scripts' cases, by folder; `python sql/make_goldens.py` writes them."""
