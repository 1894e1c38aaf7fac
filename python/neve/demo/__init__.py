"""A training run that is killed and comes back, checked bit for bit: `python -m neve.demo`, or `./dev demo`.

text.py    the words it trains on
model.py   a small GPT
train.py   one life of the training job: restore, train, save at every step
run.py     several lives, what happens between them, and the checks
"""
