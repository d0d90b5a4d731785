#!/usr/bin/env python3
"""Breaks the block on purpose, one mistake at a time, and counts the mistakes that the tests find:
`mutate.py [--every N]`.

Exit status 1 if fewer than 95 % are found. A mistake is a text that stands once in a file, and what stands
there instead.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
MODULES = ["test_vectors", "test_functions", "test_edges", "test_streams", "test_tokens", "test_chaos", "test_disturbed", "test_attacks"]
# The tests that are likely to find a mistake in a file come first; before them the one that is likely to find
# this very mistake, by what stands there instead or by what stood there.
LIKELY = {"registers.sv": "test_edges", "metadata_table.sv": "test_edges", "slice_splice.sv": "test_edges", "transport_sum.sv": "test_functions"}
HINTS = {
    "look_behind[GEN_W-1] ? 3'd1 : 3'd0": "test_attacks late_stale_and_duplicate",
    "value >= 32'd67": "test_edges registers_out_of_range", "bresp_reg  <= OKAY": "test_edges registers_out_of_range",
    "to_four >= 8'd225": "test_functions only_shallow", "at_place <= 6'd21": "test_functions headers_up_to_96_bytes",
    ".clear(table_reset)": "test_edges new_key_while_traffic_flows", "first_reg": "test_streams line_rate",
    "if (arrives) sum_reg": "test_vectors .", " - 17'(departed_reg)": "test_streams any_mix", "bytes_have[9]": "test_functions headers_up_to",
    "{words, 2'd0} < left[5:0]": "test_functions no_payload|lengths|threshold",
    "(!cut ||": "test_edges marked_packets_by_policy",
    "have[{{(BEAT_W - 5){1'b0}}, token_place, 2'd0} + (BEAT_W + 2)'(21)];": "test_functions a_token_that_is_cut_off",
    "{arrived_reg, departed_reg, expired_reg, died_reg} <= '0;": "test_disturbed reset_at_every_cycle",
}
I, E, T, N, P, C, R, M, A, S = (
    "slice_ingress.sv splice_egress.sv metadata_table.sv ip_parser.sv transport_parser.sv transport_sum.sv registers.sv token_maker.sv "
    "aes_tag.sv slice_splice.sv"
).split()
MUTANTS = [
    (I, "ip_end >= {1'b0, threshold}", "ip_end > {1'b0, threshold}"),
    (I, "parked <= 16'(MAX_PAYLOAD);\n    assign wanted", "parked < 16'(MAX_PAYLOAD);\n    assign wanted"),
    (I, "parked > 16'd8;", "parked > 16'd7;"),
    (I, "shallow && !many && at_place", "shallow && at_place"),
    (I, "(!whole || (tail_byte < 17'(3*BYTES) && have[tail_byte[7:0]]))", "1'b1"),
    (I, "new_dscp        = sliced ? 6'd63", "new_dscp        = sliced ? 6'd62"),
    (I, "covered         = 16'd8 +", "covered         = 16'd9 +"),
    (I, "c_no_sum ? 16'd0 : sum_sliced == 16'd0", "sum_sliced == 16'd0"),
    (C, "tcp || g < 2", "tcp || g < 3"),
    (I, "!old_user_reg && frame_bytes >= ip_end && fits", "frame_bytes >= ip_end && fits"),
    (I, "!old_user_reg && frame_bytes >= ip_end && fits", "!old_user_reg && fits"),
    (I, "!old_user_reg && frame_bytes >= ip_end && fits", "!old_user_reg && frame_bytes >= ip_end"),
    (I, "frame_bytes >= ip_end && fits", "frame_bytes > ip_end && fits"),
    (I, "cut ? 1'b0 : old_user_reg || ours", "cut ? 1'b0 : old_user_reg"),
    (I, "cut ? 1'b0 : old_user_reg || ours", "cut ? 1'b0 : ours"),
    (I, "guards && ip && dscp == 6'd63 && !sliced", "1'b0"),
    (I, "!throw && (!cut ||", "(!cut ||"),
    (I, "base + 17'(BYTES) > 17'(c_at) && row_long", "base > 17'(c_at) && row_long"),
    (I, "old_last_reg || (new_valid_reg && (new_last_reg || s_axis_tvalid))", "1'b1"),
    (I, "if (rst) first_reg <= 1'b1;", "if (rst) first_reg <= 1'b0;"),
    (E, "look_waits && r_tcp == tcp;", "look_waits;"),
    (E, "whole_length > 17'(mtu)", "whole_length >= 17'(mtu)"),
    (E, "(marked || look_ours)", "marked"),
    (E, "(tokened ? !splice : marked)", "(tokened ? !splice : 1'b0)"),
    (E, "fitting && !bad && look_complete && !long_one;", "fitting && look_complete && !long_one;"),
    (E, "fitting && !bad && look_complete && !long_one;", "fitting && !bad && !long_one;"),
    (E, "waited_reg >= patience", "1'b0"),
    (E, "dscp == 6'd63 ? r_dscp : dscp", "r_dscp"),
    (E, "ip_sum == r_ip_sliced ? r_ip_whole : changed_ip", "changed_ip ^ 16'd1"),
    (E, "dscp == 6'd63 && ip_sum == r_ip_sliced", "ip_sum == r_ip_sliced"),
    (I, "guards && ip && dscp", "ip && dscp"),
    (E, "!c_tcp && changed_l4 == 16'd0 ? 16'hffff : changed_l4", "c_whole"),
    (E, "(c_l4_sum == 16'd0 || c_whole == 16'd0) ? 16'd0", "(c_l4_sum == 16'd0) ? 16'd1"),
    (E, "at[BEAT_W-1:0] < r_at[BEAT_W-1:0]", "1'b0"),
    (E, "have[{{(BEAT_W - 5){1'b0}}, token_place, 2'd0} + (BEAT_W + 2)'(21)];", "1'b1;"),
    (E, "out_last  = untouched ? lasts[0] : base + 17'(BYTES) >= c_total", "out_last  = untouched ? lasts[0] : base + 17'(BYTES) > c_total"),
    (E, "enable && at_tail && look_ours", "1'b0"),
    (E, "users[0] || hidden ||", "hidden ||"),
    (T, "ttl_reg[index_reg] <= 16'd1", "ttl_reg[index_reg] <= 16'd2"),
    (T, "ttl_reg[index_reg] - 16'd1", "ttl_reg[index_reg] - 16'd2"),
    (T, "index_state == WAITING || index_state == LEAVING;\n    assign index_usable", "index_state == WAITING;\n    assign index_usable"),
    (T, "state_reg[{probe_entry, 2'b00} +: 3] != UNUSED", "1'b0"),
    (T, "look_token[47:0] == {look_generation, tag_reg[look_entry]}", "look_token[47:TAG_W] == look_generation"),
    (T, "look_token[47:0] == {look_generation, tag_reg[look_entry]}", "look_token[TAG_W-1:0] == tag_reg[look_entry]"),
    (T, "look_ours && look_state == WAITING", "look_ours"),
    (T, "17'(look_token[63:48]) < 17'(ENTRIES)", "1'b1"),
    (T, "complete_next[n] = 1'b0;", "complete_next[n] = complete_reg[n];"),
    (T, "if (dies && writing_reg == ENTRY_W'(n)) state = DAMAGED;", ""),
    (T, "index_reg == LAST ? '0 : index_reg + 1'b1", "index_reg == LAST - 1'b1 ? '0 : index_reg + 1'b1"),
    (T, "generation_reg[index_reg] + 1'b1", "generation_reg[index_reg]"),
    (T, "look_behind[GEN_W-1] ? 3'd0 : 3'd1", "look_behind[GEN_W-1] ? 3'd1 : 3'd0"),
    (N, "(fragment_word & 16'h3fff) == 16'd0", "1'b1"),
    (P, "words >= 4'd5 :", "words >= 4'd4 :"),
    (P, "udp_length == left", "1'b1"),
    (P, "head[0] || (six", "(six"),
    (P, "to_four >= 8'd224", "to_four >= 8'd225"),
    (N, "ihl >= 4'd5", "ihl >= 4'd6"),
    (R, "value >= 32'd68", "value >= 32'd67"),
    (R, "value[5:0] != 6'd63", "1'b1"),
    (R, "bresp_reg  <= good ? OKAY : SLVERR", "bresp_reg  <= OKAY"),
    (M, "generation + 1'b1;", "generation + 2'd2;"),
    (M, "block({63'd0, walking_reg, message})", "block({64'd0, message})"),
    (A, "round_reg == 4'd10 ? shifted : mixed", "round_reg == 4'd9 ? shifted : mixed"),
    (S, ".clear(table_reset || forget)", ".clear(table_reset)"),
    (I, "old_valid_reg ? old_last_reg : first_reg", "first_reg"),
    (I, "32'd252", "32'd248"),
    (I, "at_place <= 6'd20", "at_place <= 6'd21"),
    (E, "32'd65527", "32'd65528"),
    (E, "new_udp    = 16'd8 +", "new_udp    = 16'd7 +"),
    (E, "left == 16'd8 +", "left >= 16'd8 +"),
    (T, "if (arrived_reg) sum_reg", "if (arrives) sum_reg"),
    (N, "length_word >= {10'd0, ihl, 2'd0};", "1'b1;"),
    (N, "kind == 16'h8100 || kind == 16'h88a8", "kind == 16'h8100"),
    (P, "tcp ? bytes_have[21] : bytes_have[9]", "bytes_have[9]"),
    (P, "{words, 2'd0} <= left[5:0]", "{words, 2'd0} < left[5:0]"),
    (C, "g >= 2 && g < 6", "g >= 2 && g < 5"),
    (C, "place <= 5'(5 + g)", "place <= 5'(4 + g)"),
    (C, "at_place > 6'(10 + g)", "at_place >= 6'(10 + g)"),
    (C, "g == 8 ? 9 : g", "g == 8 ? 8 : g"),
    (C, "19'd14 +", "19'd15 +"),
    (E, "8'(p_ip_end - 17'd8)", "8'(p_ip_end - 17'd4)"),
    (T, " - 17'(departed_reg)", ""),
    (T, "{arrived_reg, departed_reg, expired_reg, died_reg} <= '0;", ""),
]


def run(mutant):
    """Which test found it, or None."""
    name, old, new = mutant
    with tempfile.TemporaryDirectory() as folder:
        rtl = Path(folder) / "rtl"
        shutil.copytree(HERE / "rtl", rtl)
        text = (rtl / name).read_text()
        if text.count(old) != 1:
            sys.exit(f"{name}: {old!r} stands there {text.count(old)} times, not once")
        (rtl / name).write_text(text.replace(old, new))
        likely = LIKELY.get(name, MODULES[0])
        hint = HINTS.get(new) or HINTS.get(old)
        first = [hint.split()] if hint else []
        for module, only in first + [(likely, None)] + [(module, None) for module in MODULES if module != likely]:
            command = [sys.executable, HERE / "tb/run.py", "--first", "--rtl", rtl, "--build", Path(folder) / "build", module]
            command += ["--only", only] if only else []
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            except subprocess.TimeoutExpired:
                return f"{module}: no end"
            if done.returncode:
                lines = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
                if not lines:
                    # No test has judged it, so that it is no mistake that was found.
                    raise RuntimeError(f"{name}: {new!r}: {module} did not run\n{done.stdout}{done.stderr}")
                return lines[0].split()[-3]
    return None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--every", type=int, default=1, help="only every Nth mistake")
    arguments.add_argument("--skip", type=int, default=0, help="not the first N mistakes")
    arguments.add_argument("--match", default="", help="only mistakes whose text has this in it")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = arguments.parse_args()
    mutants, since = [m for m in MUTANTS if chosen.match in m[1]][chosen.skip :: chosen.every], time.monotonic()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        found, under_way = 0, {pool.submit(run, mutant): mutant for mutant in mutants}
        for done in as_completed(under_way):
            (name, old, new), by = under_way[done], done.result()
            found += by is not None
            print(f"{'found   ' if by else 'SURVIVES'} {name}: {' '.join(old.split())} -> {' '.join(new.split()) or 'nothing'}: {by}", flush=True)
    share = found / len(mutants)
    print(f"{found} of {len(mutants)} mistakes found, {share:.1%}, {time.monotonic() - since:.0f} s")
    sys.exit(share < 0.95)


if __name__ == "__main__":
    main()
