"""An accelerator that exists on paper only: its speed model, its schedules and its bits.

What a chip must tell before a plan can be made for it is data (`contract/devices/paper.json`): what
a step of its matrix unit computes, how fast its parts are, and its modes. In the mode "free"
partial results are added as they arrive, and pages of keys go to whichever core is idle; in the
mode "ordered" a reduction unit adds in the order of the cores, and a locked map gives every page to
the leaf of its position, which costs time.

- `machine`   the data, and how long work takes
- `schedule`  which modes and cuts keep a contract's bits, and the fastest of them
- `simulate`  the bits, whatever arrives when
"""
