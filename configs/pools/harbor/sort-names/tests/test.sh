#!/bin/bash
if diff <(printf "Ada\nGrace\nLinus\n") /app/sorted.txt; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
