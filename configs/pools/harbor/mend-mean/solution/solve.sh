#!/bin/bash
sed -i 's/len(sys.argv)/len(numbers)/' /app/mean.py
