#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// Before any work: whether the files of `--output` can be written. Throws ConfigError where one is
/// read too, or stands there and `overwrite` is false; DataError where their folder does not exist
/// or nothing can be written there, or one of them is a folder.
void check_output_files(const std::vector<std::filesystem::path>& written,
                        const std::vector<std::string>& read, bool overwrite);

/// The same of `--svg`, which replaces a picture: throws ConfigError where another file stands.
void check_picture_file(const std::filesystem::path& file);

}  // namespace trireme
