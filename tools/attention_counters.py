"""What bounds verify_attention in some regions of its table, by hardware counters.

    python3 tools/attention_counters.py KDTREE OUT

OUT has the bench's verify_attention.csv, in whose order KDTREE launches the kernel again, under ncu
and with an empty L2. Writes OUT/verify_attention_counters.csv, a line a shape.
"""

import csv
import subprocess
import sys

SHAPES = [  # batch, heads, q_len, kv_len
    "1,8,65,4096",
    "1,8,65,65536",
    "8,8,65,16384",
    "8,64,65,16384",
    "32,8,8,16384",
    "32,64,65,1024",
]
LAUNCHES = 25  # of a shape: to be checked, to fail early, 3 to warm up, 20 to be timed
PERCENT = ".pct_of_peak_sustained_elapsed"
METRICS = {  # column: what ncu calls it, and its factor to the column's unit
    "us": ("gpu__time_duration.sum", 1e-3),
    "clock_ghz": ("sm__cycles_elapsed.avg.per_second", 1e-9),
    # ncu's peak is that of sparse products, which are twice as many.
    "tensor_pct": ("sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32.sum" + PERCENT, 2),
    "shared_read_pct": ("l1tex__data_bank_reads.avg" + PERCENT, 1),
    "shared_write_pct": ("l1tex__data_bank_writes.avg" + PERCENT, 1),
    "l2_mb": ("lts__t_bytes.sum", 1e-6),
    "dram_read_mb": ("dram__bytes_read.sum", 1e-6),
    "dram_write_mb": ("dram__bytes_write.sum", 1e-6),
}


def main() -> None:
    kdtree, out = sys.argv[1:]
    with open(f"{out}/verify_attention.csv") as table:
        lines = table.read().splitlines()
    header = lines[0]
    shapes = [",".join(line.split(",")[:4]) for line in lines[2:]]
    launches = {s: LAUNCHES * shapes.index(s) + LAUNCHES // 2 + 1 for s in SHAPES}
    chosen = "|".join(str(n) for n in launches.values())
    run = subprocess.run(
        ["ncu", "--kernel-id", f"::regex:verify_attention_kernel:^({chosen})$", "--csv",
         "--clock-control", "none", "--cache-control", "all", "--print-units", "base",
         "--metrics", ",".join(name for name, _ in METRICS.values()),
         kdtree, "bench", "--backend", "cuda", "--op", "verify_attention"],
        capture_output=True, text=True, timeout=120)  # fmt: skip
    printed = run.stdout.splitlines()
    start = next((i for i, line in enumerate(printed) if line.startswith('"ID"')), None)
    if start is None:
        sys.exit(f"attention_counters: ncu has measured nothing:\n{run.stdout[-2000:]}{run.stderr}")
    values = {}
    for row in csv.DictReader(line for line in printed[start:] if line.startswith('"')):
        values.setdefault(int(row["ID"]), {})[row["Metric Name"]] = row["Metric Value"]
    with open(f"{out}/verify_attention_counters.csv", "w") as table:
        print(header, file=table)
        print("# ncu's counters of one launch of a shape, L2 empty, clocks as they are.", file=table)
        print("batch,heads,q_len,kv_len," + ",".join(METRICS), file=table)
        for shape, of_launch in zip(sorted(SHAPES, key=launches.get), values.values(), strict=True):
            cells = []
            for name, factor in METRICS.values():
                text = of_launch[name].replace(",", "")
                cells.append(text if text == "n/a" else f"{float(text) * factor:.4g}")
            print(f"{shape},{','.join(cells)}", file=table)


if __name__ == "__main__":
    main()
