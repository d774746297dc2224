"""Faults for mutate_kernels.py --planted: each is one that a pipeline of barriers may have, and must be found.

{op: [(tests, files, [(what, [(old, new), ...])])]}; `old` stands once in one of the files.
"""

ATTENTION_FORWARD = [
    ("no wait for keys", [("    ptx::mbarrier_wait(&s_.k_full[rings_.k.stage], rings_.k.parity);\n", "")]),
    ("no wait for values", [("    ptx::mbarrier_wait(&s_.v_full[rings_.v.stage], rings_.v.parity);\n", "")]),
    ("no wait for queries", [("    ptx::mbarrier_wait(&s.q_full, turn);\n", "")]),
    ("keys brought to a stage in use", [("      ptx::mbarrier_wait(&s_.k_empty[k_.stage], k_.parity ^ 1);\n", "")]),
    ("values brought to a stage in use", [("      ptx::mbarrier_wait(&s_.v_empty[v_.stage], v_.parity ^ 1);\n", "")]),
    ("queries brought over those in use", [("  ptx::mbarrier_wait(&s.q_empty, (turn & 1) ^ 1);\n", "")]),
    ("keys of the other parity", [("rings_.k.parity);\n    hides_", "rings_.k.parity ^ 1);\n    hides_")]),
    ("values of the other parity", [("&s_.v_full[rings_.v.stage], rings_.v.parity", "&s_.v_full[rings_.v.stage], rings_.v.parity ^ 1")]),
    ("queries of one parity", [("&s.q_full, turn)", "&s.q_full, 0)")]),
    ("values as early as their keys", [("      feed.bring_values(values, of);\n      values = keys.index;\n",
                                        "      values = keys.index;\n      feed.bring_values(values, of);\n")]),
    ("keys released when their product is asked for",
     [("    ptx::wgmma_wait<1>(scores_);\n    soften_scores", "    release(&s_.k_empty[rings_.k.stage]);\n    ptx::wgmma_wait<1>(scores_);\n    soften_scores"),
      ("    release(&s_.k_empty[rings_.k.stage]);\n    rings_.k.advance();\n    last_", "    rings_.k.advance();\n    last_"),
      ("    ptx::wgmma_wait<0>(scores_);\n", "    ptx::wgmma_wait<0>(scores_);\n    release(&s_.k_empty[rings_.k.stage]);\n")]),
    ("values released before their product has ended",
     [("    ptx::wgmma_wait<0>(out);\n    release(&s_.v_empty[rings_.v.stage]);\n", "    release(&s_.v_empty[rings_.v.stage]);\n    ptx::wgmma_wait<0>(out);\n")]),
    ("queries released before their last product",
     [("    await_keys();\n    begin();\n", "    await_keys();\n    if (!F::kOutInQueries) release(&s_.q_empty);\n    begin();\n"),
      ("    if (!F::kOutInQueries) release(&s_.q_empty);\n    issue_values(out);\n", "    issue_values(out);\n")]),
    ("one warp's reads not behind its release", [("sync_warpgroup(consumer);               // and", "// and")]),
    ("no fence of proxies before O leaves", [("  ptx::fence_proxy_async_shared();\n", "")]),
    ("O written over what is leaving", [("  if (elected) ptx::bulk_wait_read<0>();  // the last", "  // the last")]),
    ("O of the queries' tile still leaving", [("    if (elected) ptx::bulk_wait_read<0>();\n    sync_warpgroup(consumer);\n    release(&s.q_empty);\n",
                                               "    sync_warpgroup(consumer);\n    release(&s.q_empty);\n")]),
    ("a tile that ends with its range stored whole",
     [("  if (count == 64 || work.queries.index + work.queries.count == args.shape.q_tokens) {", "  if (count > 0) {")]),
    ("a turn taken without waiting", [("    if (F::kInTurn) turns.begin();\n", "")]),
    ("a turn not handed on", [("    if (F::kInTurn) turns.end();\n", "")]),
    ("nobody opens the first turn", [("  if (F::kInTurn) turns.open();\n", "")]),
    ("half of the bytes expected", [("static_cast<int>(sizeof s_.v[0])", "static_cast<int>(sizeof s_.v[0] / 2)")]),
    ("products without a fence", [("    ptx::wgmma_fence();\n    // Asked anew", "    // Asked anew"),
                                  ("    ptx::wgmma_fence();\n    issue_weighted_rows", "    issue_weighted_rows")]),
    ("weights of sums that have not ended", [("    soften_scores<kHides>();\n    end_values(out);\n    rescale_rows(out, rescale_);\n",
                                              "    soften_scores<kHides>();\n    rescale_rows(out, rescale_);\n    end_values(out);\n")]),
    ("sums not rescaled", [("    rescale_rows(out, rescale_);\n", "")]),
]

FORWARD_FILES = ["kernels/attention/attention_forward_sm90.cuh", "kernels/attention/attention_sweep_sm90.cuh"]
PLANTED = {"attention": [("AttentionHopper", FORWARD_FILES, ATTENTION_FORWARD)]}
