// SPDX-License-Identifier: GPL-2.0

//! Tests of the whole parser: that it is consistent, and what it refuses.

use clap::CommandFactory as _;

use super::*;

#[test]
fn the_parser_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_help() {
    fn check(command: &clap::Command) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{} {}",
                command.get_name(),
                argument.get_id()
            );
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn absent_options_are_not_set() {
    let cli = Cli::parse_from(["hcablk", "connect", "10.0.0.1", "data"]);
    let Command::Connect(args) = &cli.command else {
        panic!("{cli:?}");
    };
    let Ok(Wanted::Volume(connect)) = args.wanted() else {
        panic!("{args:?}");
    };
    assert_eq!(
        (
            connect.port,
            connect.tuning.queues,
            connect.remote_invalidate,
            connect.tuning.small_read
        ),
        (7744, None, None, None)
    );
}

#[test]
fn times_and_sizes_may_have_the_units_of_the_configuration() {
    let attributes = |options: [&str; 5]| {
        let names = [
            "--io-timeout",
            "--ctrl-loss-tmo",
            "--fast-io-fail-tmo",
            "--max-io-kib",
            "--small-read",
        ];
        let mut words = vec!["hcablk", "connect", "10.0.0.1", "data"];
        words.extend(
            names
                .iter()
                .zip(options)
                .flat_map(|(name, value)| [name, value]),
        );
        let Command::Connect(args) = Cli::parse_from(words).command else {
            panic!("{options:?}");
        };
        args.tuning.attributes()
    };
    let plain = attributes(["120", "-1", "3600", "1024", "8192"]);
    assert_eq!(plain.len(), 5);
    for same in [
        ["2 min", "never", "1 h", "1 MiB", "8 KiB"],
        ["120s", "-1", "60min", "1024KiB", "8192B"],
    ] {
        assert_eq!(attributes(same), plain, "{same:?}");
    }
    let line = [
        "hcablk",
        "target",
        "export",
        "db",
        "/dev/sdb",
        "--cache-mib",
        "4 GiB",
        "--chunk-kib",
        "64 KiB",
    ];
    let Command::Target(TargetCommand::Export(args)) = Cli::parse_from(line).command else {
        panic!("{line:?}");
    };
    assert_eq!((args.cache_mib, args.chunk_kib), (4096, 64));
}

#[test]
fn wrong_usage() {
    for line in [
        "",
        "connect",
        "connect 10.0.0.1 data --all",
        "connect data --wait -1",
        "apply --target --disks",
        "config",
        "config save file",
        "connect 10.0.0.1 a/b",
        "connect 10.0.0.1 data --queue-depth 0",
        "connect 10.0.0.1 data --queue-depth 1025",
        "connect 10.0.0.1 data --port 0",
        "connect 10.0.0.1 data --queues 128",
        "connect 10.0.0.1 data --poll-queues 127",
        "connect 10.0.0.1 data --keep-alive-tmo 0",
        "connect 10.0.0.1 data --keep-alive-tmo 601",
        "connect 10.0.0.1 data --wwid data",
        "connect 10.0.0.1 data --io-timeout 3601",
        "acknowledge-loss",
        "acknowledge-loss data log",
        "target export data /dev/sdb --write-cache",
        "target export data /dev/sdb --write-cache none",
        "target export data /dev/sdb --mode p2p --provider 81:00.A",
        "target export data /dev/sdb --mode p2p --provider nearest",
        "target export data /dev/sdb --mode p2p --provider 81:20.0",
        "connect 10.0.0.1 data --connect-timeout 0",
        "connect 10.0.0.1 data --small-read 65537",
        "connect 10.0.0.1 data --small-read 4k",
        "connect 10.0.0.1 data --small-write 65537",
        "connect 10.0.0.1 data --eager-write 1048577",
        "connect 10.0.0.1 data --max-io-kib 0",
        "connect 10.0.0.1 data --max-io-kib 1022",
        "connect 10.0.0.1 data --max-io-kib 4100",
        "connect 10.0.0.1 data --message-requests 0",
        "connect 10.0.0.1 data --message-requests 9",
        "connect 10.0.0.1 data --batch-upper 1025",
        "connect 10.0.0.1 data --batch-lower -1",
        "connect 10.0.0.1 data --host-id 00000000-0000-0000-0000-000000000000",
        "connect 10.0.0.1 data --path",
        "connect 10.0.0.1 data --path 10.0.1.1:0",
        "connect 10.0.0.1 data --path [fd00::1]7744",
        "connect 10.0.0.1 data --policy least",
        "path",
        "path add data",
        "path add data 10.0.1.1 --timeout 0",
        "path add data 10.0.1.1:x",
        "path remove data",
        "path remove data 16",
        "path policy data",
        "path policy data least",
        "disconnect",
        "disconnect data --all",
        "target",
        "target allow data",
        "target evict data",
        "target evict data host1",
        "target evict data 5f2c1d6e-8a0b-4c3d-9e7f-001122334455 --timeout 0",
        "target admit data",
        "target export data /dev/sda --no-port --port 7745",
        "target unlisten",
        "host-id --force",
    ] {
        let words = ["hcablk"].into_iter().chain(line.split_whitespace());
        assert!(Cli::try_parse_from(words).is_err(), "{line}");
    }
}

#[test]
fn wrong_usage_beyond_the_parser() {
    for line in [
        "connect 10.0.0.1 data --wait 1",
        "connect data --port 7745",
        "connect --all --queues 1",
        "connect data --no-remote-invalidate",
    ] {
        let words = ["hcablk"].into_iter().chain(line.split_whitespace());
        let Command::Connect(args) = Cli::parse_from(words).command else {
            panic!("{line}");
        };
        let error = args.wanted().err().expect(line);
        assert_eq!(error.kind.exit_code(), 2, "{line}");
    }
}

#[test]
fn arguments_after_bench_go_to_its_program() {
    let line = ["hcablk", "bench", "selftest", "--help", "--drive", "/dev/x"];
    let Command::Bench(args) = Cli::parse_from(line).command else {
        panic!("{line:?}");
    };
    assert_eq!(args.words, line[2..]);
    assert!(
        matches!(Cli::parse_from(["hcablk", "bench", "--help"]).command, Command::Bench(args) if args.words == ["--help"])
    );
}
