#!/bin/bash
if [ "$(python3 /app/mean.py 2 4 9)" = 5.0 ] && [ "$(python3 /app/mean.py 7)" = 7.0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
