#pragma once

// Whether all ranks reach the same file: each node may have a disk of its own under the same path.

#include <mpi.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/deck/keys/data.hpp"

namespace nanotron::io {

/// Collective: checks that every rank that looks can open the file and finds the same size and first bytes as rank 0,
/// which looks too. The others retry for `patience` seconds, since a network file system may show a new file late.
/// Error(code) on all ranks, which names the first rank that does not see it, and its host.
void require_same_file(MPI_Comm world, const std::filesystem::path& path, ExitCode code, double patience = 10.0,
                       bool looks = true);

// Whether all ranks see the same token file under one path: on hosts with disks of their own they may not.

/// Tokens per hashed block, and blocks in a sample.
inline constexpr index_t token_block = index_t{1} << 20, sampled_blocks = 64;
/// Bytes: of more, data%verify = 'automatic' compares a sample if size and times are the same on all hosts.
inline constexpr std::int64_t max_bytes_read_fully = std::int64_t{1} << 30;

/// Error(data_error) on all ranks unless they see the same file; it lists each hash with its hosts. Ranks of a host
/// that see one file (device and inode) share its blocks, so that every host reads its file at most once. `key` names
/// the file in the deck; with `documents` /documents are compared too. Needs 4 MiB per rank. Collective; if all ranks
/// see one file on one host nothing is read.
///
/// With B = token_block the hash is, mod 2^64, the sum over blocks i of XXH3-64(ids of tokens [iB, (i+1)B) as int32,
/// seed i), plus that of their bytes of /loss_mask with the seed 2^64 - 2 - i, plus XXH3-64(head, seed 2^64 - 1). The
/// head is a line with the sizes, ids and hashes besides the tokens. A sample takes the blocks floor(j (blocks - 1) /
/// 63), j = 0, ..., 63.
void require_same_tokens(MPI_Comm world, const data::TokenFile& file, const std::string& key, deck::Verify verify,
                         bool documents, Log& log);

/// This rank's part of that sum: rank `part` of the `parts` ranks that share the file. Part 0 includes the head. A
/// sample is of so many blocks.
std::uint64_t hash_part(const data::TokenFile& file, bool sample, bool documents, int part, int parts,
                        index_t blocks = sampled_blocks);

/// The same where the ranks of this node are known.
struct ListedTokens {
  const data::TokenFile* file;
  std::string key;
};
void require_same_tokens(MPI_Comm world, MPI_Comm node, const ListedTokens& file, deck::Verify verify, bool documents,
                         Log& log);

/// The same for a long list, by a few collectives in all: the ranks of a host (`host`, of all of which the status of a
/// file must be the same) read its files in turn. A sample has at least one block of each file and at most 1,024 in
/// all; 'auto' takes it if the list is larger than 1 GiB and one list on all hosts. Collective.
void require_same_tokens(MPI_Comm world, MPI_Comm host, const std::vector<ListedTokens>& files, deck::Verify verify,
                         bool documents, Log& log);

}  // namespace nanotron::io
