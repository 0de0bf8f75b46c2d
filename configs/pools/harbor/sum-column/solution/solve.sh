#!/bin/bash
awk -F, '{ sum += $2 } END { print sum }' /app/sales.csv > /app/sum.txt
