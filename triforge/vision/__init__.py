"""Screenshots without torch: image files, how many tokens a model sees in one, where these stand, and their pixels.

files       what an image file is, checked before anything is kept
image_spec  what a model folder says about images: tokens, sizes, positions, pixels
"""
