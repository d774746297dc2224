#!/usr/bin/env python3
"""Single edits of what cuts a model over ranks, each of which the table of meshes must find.

    tests/mutation/mutate_mesh.py --build build/cpu-release [--only tensor_axis] [--report FILE]

Each edit of EDITS takes a collective out, sends it to another group, or makes a cut, a range, an owner
or a sum a wrong one. The edited file is compiled in a scratch folder, linked in front of everything
else of train_mpi_tests as it stands in the build folder, and the tests Mesh.* and Pipelines.* are run on
2, 4 and 3 ranks until one fails. The run of one rank that they compare with has the edit too, so that it must
change nothing there. Fails where an edit survives. --check: whether each text to edit is there, once; nothing is built.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# (file, what is wrong then, the text, what stands in its place[, which of several places])
EDITS = [
    ("src/parallel/tensor_axis.cc", "no all-gather of the sequence",
     "return cuts_tokens_ ? channel_->start_all_gather(x_TC) : Pending();", "return x_TC.given() ? Pending() : Pending();"),
    ("src/parallel/tensor_axis.cc", "no reduce-scatter of the sequence",
     "cuts_tokens_ ? channel_->start_reduce_scatter(x_TC) :", "cuts_tokens_ ? Pending() :"),
    ("src/parallel/tensor_axis.cc", "no all-reduce of partial sums",
     ": channel_->start_all_reduce(x_TC);", ": Pending();"),
    ("src/parallel/tensor_axis.cc", "statistics of the vocabulary's parts not gathered",
     "if (rank_.extent > 1) channel_->start_all_gather(parts)",
     "if (rank_.extent > 99) channel_->start_all_gather(parts)"),
    ("src/model/head.cc", "no z-loss where the vocabulary is cut",
     "finish.z_loss = training->z_loss;", "finish.z_loss = tensor.extent() > 1 ? 0 : training->z_loss;"),
    ("src/store/partial_gradients.cc", "norms of q and k not summed over the tensor axis",
     "return param.partial == TensorPartial::kWithHeads ||",
     "return (param.partial == TensorPartial::kWithHeads && extent > 99) ||"),
    ("src/store/partial_gradients.cc", "norms of the residual stream summed without sequence parallelism",
     "TensorPartial::kWithTokens && tokens_are_cut",
     "TensorPartial::kWithTokens && (tokens_are_cut || extent > 1)"),
    ("src/store/partial_gradients.cc", "norms of the residual stream never summed",
     "TensorPartial::kWithTokens && tokens_are_cut",
     "TensorPartial::kWithTokens && tokens_are_cut && extent > 99"),
    ("src/store/partial_gradients.cc", "shared key heads not summed",
     "param.cut.replicas(extent) > 1;", "param.cut.replicas(extent) > 99;"),
    ("src/store/reduction.cc", "no sum over data ranks at stage 0",
     "    pending_.push_back(group.channels.replicas.start_all_reduce(gradients));\n", "    return;\n"),
    ("src/store/reduction.cc", "no sum over shards",
     ": group.channels.shards.start_reduce_scatter(bucket.shards);", ": Pending();"),
    ("src/store/reduction.cc", "no sum over replicas of a shard",
     "if (group.channels.shards.size() > 1 && group.channels.replicas.size() > 1)\n    group.", "if (group.channels.replicas.size() > 99) group."),
    ("src/store/reduction.cc", "sum over replicas in the group of shards",
     "group.channels.replicas.start_all_reduce(sum)", "group.channels.shards.start_all_reduce(sum)"),
    ("src/store/reduction.cc", "the last micro-batch's gradients alone",
     "bucket.first = started_[static_cast<std::size_t>(block)] == 0;", "bucket.first = true;"),
    ("src/store/reduction.cc", "gradients of the step before kept",
     "started_.assign(started_.size(), 0);", ""),
    ("src/optim/muon_rule.cc", "parts of matrices not brought to their worker",
     "  exchange(round.ranks, round.part_sends, round.piece_receives);\n", ""),
    ("src/optim/muon_rule.cc", "updates of matrices not sent back",
     "  exchange(round.ranks, round.piece_sends, round.part_receives);\n", ""),
    ("src/optim/muon_rule.cc", "parts of matrices laid over each other",
     "box_of(matrix, box.box.offset, box.box.shape)", "box_of(matrix, box.at, box.box.shape)"),
    ("src/optim/muon_rule.cc", "a matrix's rate by the shape of a part",
     "std::max(whole[0], whole[1])", "std::max(shape[0], shape[1] + 0 * whole[1])"),
    ("src/optim/matrix_share.cc", "every shard of a matrix the first one",
     "shard{shard_.extent, rank / tensor_.extent};", "shard{shard_.extent, rank / tensor_.extent * 0};"),
    ("src/train/runtime.cc", "matrices whose parts are sought in other copies too",
     "return stage.split(other * replica.extent + replica.index);", "return stage.split(other * replica.extent);"),
    ("kernels/shards/shards_cpu.cc", "a shard one element off",
     "f(tensor.local + first * tensor.row_elements + from - tensor.shard, from, to - from);",
     "f(tensor.local + first * tensor.row_elements + from - tensor.shard, from - (from > begin ? 1 : 0), to - from);"),
    ("src/store/weight_gather.cc", "weights not gathered again after the update",
     "for (Block& block : blocks_) block.state = State::kStale;", ""),
    ("src/store/weight_gather.cc", "no gather of weights",
     "    bucket.transfer = group.channel.shards.start_all_gather(bucket.shards);\n", ""),
    ("kernels/shards/shards_cpu.cc", "every owner's shard taken for the first's",
     "for_each_run(args, args.first_owner + here, at", "for_each_run(args, args.first_owner, at"),
    ("src/store/weight_gather.cc", "gathered weights left in their bucket",
     "  group.buckets.unpack(context_, weights_of(bucket.block, group.form), bucket);\n",
     "  if (bucket.block < 0) group.buckets.unpack(context_, weights_of(bucket.block, group.form), bucket);\n"),
    ("src/store/joined_maxima.cc", "maxima of other ranks' parts left out",
     "  join_maxima(context, maxima.rows(mine * part, part), others.reshape({ranks.size() - 1, part}));\n", ""),
    ("src/optim/coded_moments_rule.cc", "moments' magnitudes not joined over the tensor axis",
     "for (Communicator* ranks : {channels.tensor, channels.shard}) {", "for (Communicator* ranks : {channels.shard}) {"),
    ("src/optim/coded_moments_rule.cc", "moments' magnitudes not joined over ZeRO's shards",
     "for (Communicator* ranks : {channels.tensor, channels.shard}) {", "for (Communicator* ranks : {channels.tensor}) {"),
    ("src/store/weight_gather.cc", "transposes of the fp8 weights that stood there before",
     "  store_.codes_changed(bucket.block);\n", ""),
    ("src/model/branch.cc", "the largest magnitude of an earlier micro-batch kept",
     "  clear(pass.context, amax_P);\n", ""),
    ("src/model/fp8_linear.cc", "scales of gathered codes not gathered",
     "    if (blocks()) of_.tensor.all_gather(out.scales);\n", ""),
    ("src/store/store_layout.cc", "room for the smallest share only",
     "even_slice(shape[0], view.shard.extent, 0).size",
     "even_slice(shape[0], view.shard.extent, view.shard.extent - 1).size"),
    ("src/store/gradients.cc", "squares of copies counted twice in the norm",
     "even_slice(rows, same_part * ranks.replica.extent,\n"
     "                    ranks.tensor.index % same_part * ranks.replica.extent + ranks.replica.index);",
     "even_slice(rows, same_part, ranks.tensor.index % same_part);"),
    ("src/store/gradients.cc", "squares of what the tensor axis does not cut counted twice in the norm",
     "even_slice(rows, same_part * ranks.replica.extent,\n"
     "                    ranks.tensor.index % same_part * ranks.replica.extent + ranks.replica.index);",
     "even_slice(rows, ranks.replica.extent, ranks.replica.index + 0 * same_part);"),
    ("src/store/gradients.cc", "values of a tied weight counted at both ends",
     "if (param(index).shares != kNoParam || param(index).tied_rank.index > 0) return {0, 0};", ""),
    ("src/optim/adafactor_rule.cc", "sums of lines that the tensor axis cuts not joined",
     "join(joined.channels.tensor, joined.tensor_lines);", ""),
    ("src/optim/adafactor_rule.cc", "sums of columns that ZeRO cuts not joined",
     "join(joined.channels.shard, joined.shard_lines);", ""),
    ("src/optim/adafactor_rule.cc", "squares of tensor-parallel copies counted twice",
     "whole.counts = axis.index % meta.cut.replicas(axis.extent) == 0;", "whole.counts = true;"),
    ("src/optim/adafactor_rule.cc", "rows of tensor-parallel ranks counted twice",
     "whole.counts_rows = rows_cut ? whole.counts : axis.index == 0;", "whole.counts_rows = true;"),
    ("src/optim/adafactor_rule.cc", "squares of ZeRO's other rows left out",
     "join(joined.channels.shard);", ""),
    ("src/optim/block_meter.cc", "weights and updates of copies counted twice in the norms of blocks",
     "store_.gradients().counted_rows(index, rows);", "{0, rows};"),
    ("src/train/block_norms.cc", "norms of the blocks that this rank has",
     "replica.sum(std::span(words));", "replica.sum(std::span(words).first(0));"),
    ("src/model/model_blocks.cc", "the layers of each stage counted from 0",
     "chunk.range.first_layer + i", "i"),
    ("src/store/gradients.cc", "the head's gradient of a tied weight forgotten where there are shards",
     "if (waits_for_owner(i) && param", "if (accumulates() && waits_for_owner(i) && param"),
    ("src/store/param_store.cc", "owned rows one off",
     ".rows(rows.begin, rows.size);\n}\n\nParamStore::In",
     ".rows(rows.begin > 0 ? rows.begin - 1 : 0, rows.size);\n}\n\nParamStore::In"),
    ("src/store/param_store.cc", "initial values by the local row",
     "(part.box.offset[0] + row) * global_row", "(part.at[0] + row) * global_row"),
    ("src/store/param_store.cc", "initial values by the local column",
     "const std::int64_t first_column = matrix ? part.box.offset[1] : 0;",
     "const std::int64_t first_column = matrix ? part.at[1] : 0;"),
    ("src/parallel/cut.cc", "key heads shared by ranks that are no neighbours",
     "units = {rank.index / replicas_of_units(segment.units, rank.extent), 1};",
     "units = {rank.index % segment.units, 1};"),
    ("src/parallel/cut.cc", "segments of a rank on top of each other",
     "    part.at.set(cut.dim, at);\n", "    if (rank.extent == 1) part.at.set(cut.dim, at);\n"),
    ("src/parallel/context_axis.cc", "ranges of the axis in the opposite order",
     "context_ranges(sequence_tokens, {rank_.extent, i})",
     "context_ranges(sequence_tokens, {rank_.extent, rank_.extent - 1 - i})"),
    ("src/parallel/context_axis.cc", "forward: results of blocks not merged",
     "if (step > 0) attention_merge", "if (step > 99) attention_merge"),
    ("src/parallel/context_axis.cc", "forward: blocks behind their own ranges",
     "args.mask.kv = ranges_of(behind(step));", "args.mask.kv = ranges_of(rank_.index);", 0),
    ("src/parallel/context_axis.cc", "ring backward: blocks behind their own ranges",
     "args.mask.kv = ranges_of(behind(step));", "args.mask.kv = ranges_of(rank_.index);", 1),
    ("src/parallel/context_axis.cc", "gathered backward: blocks behind their own ranges",
     "args.mask.kv = ranges_of(behind(step));", "args.mask.kv = ranges_of(rank_.index);", 2),
    ("src/parallel/context_axis.cc", "ring backward: a block's part not added",
     "      accumulate(context, buffers.dkv[step % 2], buffers.dkv_block);\n", ""),
    ("src/parallel/context_axis.cc", "ring: keys stay where they are",
     "if (ring && step + 1 < rank_.extent) move", "if (ring && step + 99 < rank_.extent) move"),
    ("src/parallel/context_axis.cc", "gathered forward: no gather",
     "ring ? Pending() : channel_->start_all_gather",
     "ring || rank_.extent > 1 ? Pending() : channel_->start_all_gather"),
    ("src/parallel/context_axis.cc", "gathered backward: gradients not summed",
     "  channel_->start_reduce_scatter(buffers.dkv[0]).wait();\n", ""),
    ("src/parallel/context_axis.cc", "ulysses: outputs sent as if by rank",
     "to_ranks(context, buffers.o_sent, buffers.o_received, shape.sequences);",
     "to_sequences(context, buffers.o_sent, buffers.o_received, shape.sequences);"),
    ("src/parallel/context_axis.cc", "ulysses: documents of the others unknown",
     "  exchange_chunks(context, sequences, to_all, all.by_sequence());\n", "  static_cast<void>(to_all);\n"),
    ("src/parallel/context_axis.cc", "ulysses: shared key heads not summed",
     "      accumulate(context, from(first), from(next));", "      ;"),
    ("src/parallel/context_axis.cc", "ulysses: the first key head for every rank",
     "return rank * q / (shape.heads / shape.kv_heads);", "return 0 * rank * q;"),
    ("src/model/param_table.cc", "q, k and v of one matrix cut as one segment",
     '{{"c_attn", {heads, kv_heads, kv_heads}}}',
     '{{"c_attn", {CutSegment{heads.size + 2 * kv_heads.size, heads.units + 2 * kv_heads.units}}}}'),
    ("src/model/param_table.cc", "the norm of q not partial with heads",
     'attention + "q_norm", size, TensorPartial::kWithHeads)',
     'attention + "q_norm", size, TensorPartial::kNever)'),
    ("src/model/param_table.cc", "the norm of k partial with tokens",
     'attention + "k_norm", size, TensorPartial::kWithHeads)',
     'attention + "k_norm", size, TensorPartial::kWithTokens)'),
    ("src/model/param_table.cc", "norms of the residual stream never partial",
     "TensorPartial partial = TensorPartial::kWithTokens", "TensorPartial partial = TensorPartial::kNever"),
    ("src/model/param_table.cc", "a norm's bias not partial",
     "      params.metas[norm.bias].partial = partial;\n", ""),
    ("src/model/branch.cc", "a row-parallel product's bias added by every rank",
     "  if (!pass.tensor.first()) weights.bias = {};\n", ""),
    ("src/model/block.cc", "the down projection's parts not summed",
     "    return row_parallel_forward(pass, scratch.branch_TC, x, weights.out, scratch.n_TC,\n"
     "                                pass.drops_residual() ? RowsFunction(drop_rows) : then);",
     "    { linear_forward(pass.context, scratch.branch_TC, x.x_TK, weights.out); "
     "return then.given() ? then(pass.context, 0, pass.tensor.residual_rows(scratch.branch_TC).shape[0]) : void(); }"),
    ("src/model/attention.cc", "probabilities of other tensor ranks' heads dropped",
     "pass.dropout.tensor_rank * pass.config.attention.heads};", "0};"),
    ("src/parallel/context_axis.cc", "forward: probabilities of other context ranks' heads dropped",
     "  args.dropout.first_head += rank_.index * share.q;\n", "", 0),
    ("src/parallel/context_axis.cc", "backward: probabilities of other context ranks' heads dropped",
     "  args.dropout.first_head += rank_.index * share.q;\n", "", 1),
    ("src/model/stage.cc", "the embedding's gradient not dropped",
     "  drop_stream(pass_of(batch, Direction::kBackward), axes_.tensor.residual_rows(d));\n",
     "  if (axes_.tensor.extent() == 1) drop_stream(pass_of(batch, Direction::kBackward), d);\n"),
    ("src/model/branch.cc", "inputs of attention and MLP not gathered",
     "x_TC, pass.tensor.start_all_gather(x_TC)", "x_TC, Pending()"),
    ("src/model/attention.cc", "norm of all heads: squares not summed",
     "    pass.tensor.sum(acts.squares_2T);\n", ""),
    ("src/model/attention.cc", "norm of all heads: the gradient's part not summed",
     "if (of.pass.tensor.extent() > 1) of.pass.tensor.sum(scratch.dots_2T);", ""),
    ("src/model/block.cc", "norm behind a branch: of rows of another rank",
     "const TensorView made_SC = pass.tensor.residual_rows(scratch.n_TC);",
     "const TensorView made_SC = scratch.n_TC.rows(0, kept_SC.shape[0]);"),
    ("src/model/block.cc", "backward: the MLP's parts not summed",
     "tensor.start_reduce(mlp.left.n_TC)", "Pending()"),
    ("src/model/block.cc", "backward: attention's parts not summed",
     "tensor.start_reduce(attention.left.n_TC)", "Pending()"),
    ("src/model/block.cc", "weights: the MLP's input not gathered",
     "= tensor.start_all_gather(mlp.left.n_TC)", "= Pending()"),
    ("src/model/block.cc", "weights: attention's input not gathered",
     "= tensor.start_all_gather(attention.left.n_TC)", "= Pending()"),
    ("src/model/block.cc", "recompute: rotated heads of the layer before",
     "if (recompute == Recompute::kSelective)", "if (recompute == Recompute::kSelective && pass.tokens() == 99)"),
    ("src/model/latent_attention.cc", "recompute: latents' queries of the layer before",
     "  make_queries(pass, acts, scratch);\n  make_keys", "  make_keys"),
    ("src/model/latent_attention.cc", "the keys' shared dims not gathered",
     "Pending rope = pass.tensor.start_all_gather(acts.latent.rope_TR);", "Pending rope;"),
    ("src/model/latent_attention.cc", "the gradient of the shared dims not summed",
     "rope = pass.tensor.start_reduce(scratch.drope_TR)", "rope = Pending()"),
    ("src/model/latent_attention.cc", "the gradient of a latent not summed",
     "Pending kv = pass.tensor.start_reduce(scratch.dkv_TX)", "Pending kv = Pending()"),
    ("src/model/latent_attention.cc", "the gradient by way of q not summed",
     "q = pass.tensor.start_reduce(has_rank ? scratch.dq_TX : of.left.n_TC)", "q = Pending()"),
    ("src/model/param_table.cc", "gradients of latents' products not summed over their rows",
     "table.of_residual_rows(to.in);", ""),
    ("src/model/head.cc", "the head's gradient not summed",
     "if (training != nullptr && training->input) tensor.reduce(args.n_TC);", ""),
    ("src/model/head.cc", "the vocabulary's rows one off",
     "return {rows.begin, rows.size};", "return {rows.begin > 0 ? rows.begin - 1 : 0, rows.size};"),
    ("src/model/walk.cc", "the embedding's parts not summed", "  tensor.reduce(embedding.out_TC);\n", ""),
    ("src/model/stage_layout.cc", "layers of all micro-batches in one memory",
     "first_others + others.of(s, i, layer)", "first_others + static_cast<std::int32_t>(layer)"),
    ("src/model/stage_layout.cc", "what W of a layer needs written over by the next B",
     "gradients.of_stage(s),\n             embedding", "std::vector<std::int32_t>(gradients.of_stage(s).size(), "
     "gradients.of(s, 0) < 0 ? -1 : 0),\n             embedding"),
    ("src/pipeline/slots.cc", "memory free one action early", "if (!ends(actions[i].kind, holding)) continue;",
     "if (!ends(actions[i].kind, holding) && !goes_back(actions[i].kind)) continue;"),
    ("src/model/stage.cc", "the embedding's gradient not gathered", "  axes_.tensor.all_gather(d);\n", ""),
    ("src/model/stage.cc", "the head's input not gathered", "  axes_.tensor.all_gather(ends.final_n_TC);\n", ""),
    ("src/store/gradients.cc", "gradients complete with each micro-batch at stage 0",
     "if (accumulates() ? !last : block != open_block_) return;", "if (!accumulates() && block != open_block_) return;"),
    ("src/plan/rank_part.cc", "the next rank's shard",
     "{group, peer % group}", "{group, (peer + 1) % group}"),
    ("src/plan/rank_part.cc", "replicas not apart from shards",
     "{peers / group, peer / group}", "{peers / group, peer % (peers / group)}"),
    ("src/plan/rank_part.cc", "every rank the first of the context axis",
     "part.cut.context = context;", "part.cut.context = {context.extent, 0};"),
    ("src/train/runtime.cc", "sums over data ranks without the context axis",
     "group_color({Axis::kData, Axis::kContext}", "group_color({Axis::kData}"),
    ("src/train/runtime.cc", "shared key heads summed with others",
     "return tensor.index / replicas_of_units", "return tensor.index % replicas_of_units"),
    ("src/parallel/expert_axis.cc", "an expert's parts all the first",
     "part * part_rows + route.home_rows[at],", "part % 1 * part_rows + route.home_rows[at],"),
    ("src/parallel/expert_axis.cc", "rows of a source by this rank's counts",
     "return of_rank(i % ranks)[static_cast<std::size_t>(here.begin) + i / ranks];",
     "return of_rank(self)[static_cast<std::size_t>(here.begin) + i / ranks];"),
    ("src/parallel/expert_axis.cc", "a token once for each of its experts",
     "if (to.empty() || to.back() != token) to.push_back(token);", "to.push_back(token);"),
    ("src/train/runtime.cc", "counts of an auxiliary loss not joined",
     "config.moe.scope == BalanceScope::kGlobal ? 0 : data_rank(stage.rank(), part))),",
     "config.moe.scope == BalanceScope::kGlobal ? 0 : stage.rank() + 0 * data_rank(stage.rank(), part))),"),
    ("src/model/experts.cc", "backward's tokens counted from the first",
     "router.first_token = home_range(pass.tensor, pass.tokens()).begin;", "router.first_token = 0;"),
    ("src/model/experts.cc", "every rank of the tensor axis routes all tokens",
     "return even_slice(tokens, tensor.extent(), tensor.rank().index);", "return even_slice(tokens, 1, 0);"),
    ("src/model/param_table.cc", "a router's gradient not summed over the tensor axis",
     "params.metas[linear.weight.first].partial = TensorPartial::kWithHeads;", ""),
    ("src/model/param_table.cc", "a router's bias of some tokens",
     "params.metas[linear.bias.first].partial = TensorPartial::kWithHeads;", ""),
    ("src/model/experts.cc", "each part of an expert adds the bias behind it",
     "pass.experts->axis.cut().tensor.index == 0;", "pass.experts->axis.cut().tensor.index >= 0;"),
    ("src/parallel/context_axis.cc", "the first heads' sinks on every rank",
     "sink_H.rows(rank_.index * share.q, share.q)", "sink_H.rows(0 * rank_.index, share.q)"),
    ("src/parallel/context_axis.cc", "the first heads' sinks get every rank's gradient",
     "sinks.heads(rank_.index * share.q,", "sinks.heads(0 * rank_.index,"),
    ("src/plan/rank_part.cc", "experts' copies by data rank",
     "const int expert_peer = stage_rank / expert_ranks;", "const int expert_peer = peer % expert_data;"),
    ("src/train/runtime.cc", "experts' gradients summed with those of other experts",
     "peers(stage.split(part.cut.expert.index())),", "peers(stage.split(stage.rank() / (stage.size() / part.cut.expert.ranks()))),"),
    ("src/train/router_bias.cc", "the first rows' counts on every rank",
     "of_experts.at(static_cast<std::size_t>(first) + i)", "of_experts.at(i + 0 * static_cast<std::size_t>(first))"),
    ("src/dataset/batch_builder.cc", "targets of the second range one token late",
     "counted_[i + 1] == 0 ? -1 : tokens_[i + 1];", "counted_[i + 1] == 0 ? -1 : tokens_[i + (range.first == 0 ? 1 : 0)];"),
    ("src/dataset/batch_builder.cc", "positions counted from a range's beginning",
     "static_cast<std::int32_t>(range.first + i)", "static_cast<std::int32_t>(i)"),
    ("src/dataset/batch_builder.cc", "documents by place in the row",
     "first_key[at] = document_begin_[i];", "first_key[at] = document_begin_[at];"),
    ("src/dataset/batch_builder.cc", "the tokens of the opposite place",
     "context_ranges(source_->length(), context)",
     "context_ranges(source_->length(), {context.extent, context.extent - 1 - context.index})"),
]


def edited(text, old, new, which):
    places = [m.start() for m in re.finditer(re.escape(old), text)]
    if len(places) != 1 and which is None or which is not None and which >= len(places):
        return None
    at = places[which or 0]
    return text[:at] + new + text[at + len(old):]


class Build:
    def __init__(self, folder, scratch):
        self.folder, self.scratch = folder, scratch
        commands = subprocess.run(["ninja", "-C", folder, "-t", "commands", "train_mpi_tests"], check=True,
                                  capture_output=True, text=True).stdout.splitlines()
        self.link_command = commands[-1]
        self.compile = {}
        for command in commands:
            match = re.search(r"-o (\S+\.cc\.o) -c (\S+)", command)
            if match:
                self.compile[match[2]] = (match[1], command)

    def run(self, command):
        return subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True)

    def link(self, path, text):
        """The tests with an edited file; None where it does not compile."""
        copy, target = self.scratch / "edited.cc", self.scratch / "edited.o"
        copy.write_text(text)
        output, command = self.compile[str(ROOT / path)]
        command = command.replace(str(ROOT / path), str(copy)).replace(output, str(target))
        result = self.run(command)
        if result.returncode != 0:
            return None, result.stderr
        # Its symbols are there before the library's are looked for.
        program = self.scratch / "train_mpi_tests"
        link = self.link_command.replace(" -o train_mpi_tests ", f" {target} -o {program} ").replace(
            " -o tests/train_mpi_tests ", f" {target} -o {program} ")
        result = self.run(link)
        return (program if result.returncode == 0 else None), result.stderr


def finds(program, seconds):
    """On how many ranks something is wrong, and what; "" where all passes."""
    for ranks in (2, 4, 3):
        # One test after the other: a fault in the first ends the search.
        for test in ("Mesh.every_cell*", "Mesh.*-Mesh.every_cell*", "Pipelines.*"):
            result = subprocess.run(
                ["timeout", "-k", "5", str(seconds), ROOT / "tests/support/mpirun.sh", str(ranks), program,
                 f"--gtest_filter={test}", "--gtest_fail_fast"], capture_output=True, text=True, errors="replace")
            if result.returncode == 124:
                return f"{ranks} ranks: hangs"
            if result.returncode != 0:
                return f"{ranks} ranks: {said(result.stdout + result.stderr)}"
    return ""


def said(text):
    match = re.search(r"Which is: \"([^\"]+)\"\n.*\n(\w.*)", text)
    if match:
        return f"{match[1]} ({match[2]})"[:200]
    match = re.search(r"rank \d: (.*)", text) or re.search(r"(exited on signal .*)", text)
    return match[1][:200] if match else "fails"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, help="where train_mpi_tests is built")
    parser.add_argument("--check", action="store_true", help="only look whether each edit can be made")
    parser.add_argument("--only", default="", help="edits of files whose name contains it")
    parser.add_argument("--report", type=pathlib.Path, help="a file for the list")
    parser.add_argument("--seconds", type=int, default=300, help="for a run of the tests")
    arguments = parser.parse_args()
    lines, survived = [], 0
    edits = [edit for edit in EDITS if arguments.only in edit[0]]
    if arguments.check:
        stale = [f"{path}: {what}: the text to edit is not there once: {old}" for path, what, old, new, *which in edits
                 if edited((ROOT / path).read_text(), old, new, which[0] if which else None) is None]
        print("\n".join(stale) or f"{len(edits)} edits")
        return 1 if stale else 0
    if not arguments.build:
        parser.error("--build or --check is required")
    with tempfile.TemporaryDirectory() as scratch:
        build = Build(arguments.build.resolve(), pathlib.Path(scratch))
        for path, what, old, new, *which in edits:
            text = edited((ROOT / path).read_text(), old, new, which[0] if which else None)
            if text is None:
                sys.exit(f"{path}: {what}: the text to edit is not there once: {old}")
            begin = time.monotonic()
            program, error = build.link(path, text)
            if program is None:
                sys.exit(f"{path}: {what}: {error[-2000:]}")
            found = finds(program, arguments.seconds)
            survived += not found
            lines.append(f"{path}: {what}: {found or 'SURVIVED'}")
            print(f"{lines[-1]} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(edits)} edits, {survived} survived")
    if arguments.report:
        arguments.report.write_text("\n".join(lines) + "\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
