"""The field kit: what runs on a production host, or in a lab's guest, with nothing but python3 (3.9 or newer).

``wsw bundle`` puts this package, the modules it needs and the assembled programs into one file. It imports no more than
this of the standard library (a trimmed one may lack the rest): argparse, contextlib, ctypes, dataclasses, fcntl,
json, math, mmap, os, pathlib, pkgutil, platform, re, shlex, shutil, signal, struct, subprocess, sys, threading, time,
zipimport, zlib.
"""
