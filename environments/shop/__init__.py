"""A shop in words: search, look, choose options, buy; WebShop's task and reward over a catalogue of our own."""
