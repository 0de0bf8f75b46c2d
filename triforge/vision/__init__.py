"""Screenshots without torch: image files, their tokens and positions in a model, and their pixels.

files       checks of image files before they are stored
image_spec  the image options of a model folder: tokens, sizes, positions, pixels
"""
