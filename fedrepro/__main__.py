"""python -m fedrepro"""

import sys

from fedrepro.cli import main

sys.exit(main())
