// SPDX-License-Identifier: GPL-2.0

//! The `hcablk` command: a shared block device over RDMA, set up from user space.
//!
//! The kernel modules are configured through configfs. This command presents their two trees: it knows the relations
//! between attributes, checks before it changes anything, undoes the steps of a change that fails, and explains the
//! kernel's errors.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | the parser: commands, options, help |
//! | [`initiator`], [`target`], [`hostid`], [`keys`] | the commands |
//! | [`mod@enroll`] | ids and keys of this target and a host, exchanged over ssh |
//! | [`host_names`] | the names of hosts |
//! | [`user`] | disks that a program serves in user space |
//! | [`audit`] | the log of commands that change something |
//! | [`config`], [`apply`] | the persistent configuration, and applying it |
//! | [`stats`], [`top`], [`events`], [`metrics`], [`check`], [`mod@report`] | current activity, and problems |
//! | [`trace`] | how data moves, as text and as pictures |
//! | [`configfs`] | the trees, and changes that can be undone |
//! | [`system`] | every call to the machine, behind one trait |
//! | [`output`], [`error`] | the output of the commands |
//! | [`generate`] | completion scripts, and man pages |
//! | [`mod@complete`] | completion of command lines |
//! | [`mod@bench`] | the program that `hcablk bench` starts |
//!
//! It is a library so that tests can run the commands against an imitation of the kernel.

pub mod address;
pub mod apply;
pub mod audit;
pub mod bench;
pub mod check;
pub mod cli;
pub mod complete;
pub mod config;
pub mod configfs;
pub mod endpoint;
pub mod enroll;
pub mod error;
pub mod events;
pub mod generate;
pub mod host_names;
pub mod hostid;
pub mod initiator;
pub mod keys;
pub mod metrics;
pub mod names;
pub mod output;
pub mod report;
pub mod stats;
pub mod system;
pub mod target;
pub mod times;
pub mod top;
pub mod trace;
pub mod tuning;
pub mod user;

use std::time::Duration;

use uuid::Uuid;
use zeroize::Zeroizing;

use cli::{
    Command, ConfigCommand, HostIdArgs, KeyCommand, PathCommand, TargetCommand, TraceCommand,
    Wanted,
};
use error::{Error, Kind, Result};
use output::{Outcome, Report, Say};
use system::System;

/// Runs a command, and records it in the audit log; `say` gets the output of a command that continues until it is
/// interrupted.
pub fn run(command: &Command, system: &dyn System, say: &mut Say<'_>) -> Result<Outcome> {
    let mut result = carry_out(command, system, say);
    if let Ok(outcome) = &mut result {
        outcome.report.name_hosts(system);
    }
    audit::record(system, command, &result);
    result
}

fn carry_out(command: &Command, system: &dyn System, say: &mut Say<'_>) -> Result<Outcome> {
    match command {
        Command::Connect(args) => match args.wanted()? {
            Wanted::Volume(connect) => initiator::connect(system, &connect),
            Wanted::User(connect) => user::connect(system, &connect),
            Wanted::Discovered(how) => initiator::connect_all(system, &how),
            Wanted::Configured(only, wait) => apply::configured::connect(system, only, wait),
        },
        Command::Discover(args) => initiator::discover(system, &args.wanted()),
        Command::Config(command) => configuration(system, command),
        Command::Apply(args) => apply::apply(system, args.how.apply(args.scope.scope())),
        Command::Disconnect(args) => {
            let wait = Duration::from_secs(args.wait.into());
            initiator::disconnect(system, &args.which(), args.force, args.if_exists, wait)
        }
        Command::AcknowledgeLoss(args) => initiator::acknowledge_loss(system, &args.disk),
        Command::Path(PathCommand::Add(args)) => initiator::add_path(
            system,
            &args.device,
            &args.endpoint,
            args.keep,
            args.timeout(),
        ),
        Command::Path(PathCommand::Remove(args)) => {
            initiator::remove_path(system, &args.device, &args.path, args.if_exists)
        }
        Command::Path(PathCommand::Sync(args)) => {
            initiator::sync_paths(system, args.device.as_deref(), args.prune)
        }
        Command::Path(PathCommand::Policy(args)) => {
            initiator::set_policy(system, &args.device, args.policy)
        }
        Command::List(args) => in_columns(initiator::list(system), &args.columns),
        Command::Stats(args) => {
            let wanted = args.wanted()?;
            stats::of_disks(system, wanted.only, wanted.every, say)
        }
        Command::Top(args) => top::run(system, args.interval()),
        Command::Events(args) => events::follow(system, args.wanted(), say),
        Command::Trace(TraceCommand::Record(args)) => {
            trace::record(system, args.until(), &args.output)
        }
        Command::Trace(TraceCommand::Show(args)) => trace::show(system, &args.wanted()),
        Command::Metrics(args) => metrics::metrics(system, args.output.as_deref()),
        Command::Check(args) => check::check(system, args.strict, args.quiet),
        Command::Report(args) => report::report(system, args.output.as_deref()),
        Command::Times(args) => initiator::times(
            system,
            args.name.as_deref(),
            args.measure.map(cli::Switch::is_on),
        ),
        Command::Enroll(args) => enroll::enroll(system, &args.into()),
        Command::HostId(args) => host_id(system, args),
        Command::Key(command) => key(system, command),
        Command::Target(command) => of_target(command, system, say),
        Command::Bench(args) => Err(bench::start(&args.words)),
        Command::Completions(args) => Ok(Outcome::new(Report::Script {
            script: generate::completions(args.shell),
        })),
        Command::Complete(args) => Ok(Outcome::new(Report::Script {
            script: complete::complete(system, args.index, &args.words),
        })),
        Command::Man(args) => generate::man(&args.folder),
    }
}

fn of_target(command: &TargetCommand, system: &dyn System, say: &mut Say<'_>) -> Result<Outcome> {
    match command {
        TargetCommand::Export(args) => target::export(system, &args.into()),
        TargetCommand::Unexport(args) => match &args.name {
            Some(name) if args.here => {
                target::unexport_here(system, name, args.force, args.if_exists)
            }
            Some(name) => target::unexport(system, name, args.into()),
            None => target::unexport_all(system, args.into()),
        },
        TargetCommand::Allow(args) => target::allow(system, &args.name, &args.hosts),
        TargetCommand::Forbid(args) => {
            target::forbid(system, &args.name, &args.hosts, args.if_exists)
        }
        TargetCommand::NameHost(args) => host_names::name(system, args.host, args.name.as_ref()),
        TargetCommand::Evict(args) => {
            target::evict(system, &args.name, &args.hosts, args.timeout())
        }
        TargetCommand::Admit(args) => {
            target::admit(system, &args.name, &args.hosts, args.if_exists)
        }
        TargetCommand::Listen(args) => target::listen(system, &args.into()),
        TargetCommand::Unlisten(args) => {
            let ids = (!args.all).then_some(args.ids.as_slice());
            target::unlisten(system, ids, args.if_exists)
        }
        TargetCommand::List(args) => in_columns(target::list(system), &args.columns),
        TargetCommand::Stats(args) => {
            let (only, every) = args.of_volume()?;
            stats::of_volumes(system, only.as_ref(), every, say)
        }
        TargetCommand::Times(args) => target::times(
            system,
            args.name.as_ref(),
            args.measure.map(cli::Switch::is_on),
        ),
        TargetCommand::Apply(args) => apply::apply(system, args.apply()),
        TargetCommand::Unapply(args) => {
            apply::unapply(system, args.unit.as_deref(), args.timeout())
        }
    }
}

/// Sets the columns of a list.
fn in_columns(list: Result<Outcome>, columns: &[String]) -> Result<Outcome> {
    let mut list = list?;
    list.report.set_columns(columns);
    Ok(list)
}

fn configuration(system: &dyn System, command: &ConfigCommand) -> Result<Outcome> {
    match command {
        ConfigCommand::Check(args) => config::commands::check(system, &args.files),
        ConfigCommand::Show(args) => config::commands::show(system, args.running),
        ConfigCommand::Diff(args) => apply::diff(system, args.scope()),
        ConfigCommand::Save(args) => {
            config::commands::save(system, args.file.as_deref(), args.force)
        }
    }
}

fn key(system: &dyn System, command: &KeyCommand) -> Result<Outcome> {
    let wrong = |why| Error::new(Kind::Usage, why);
    match command {
        KeyCommand::Generate(args) => keys::generate(system, &args.side.own(), args.rotate),
        KeyCommand::Show(args) => keys::show(system, &args.side.own()),
        KeyCommand::Add(args) => {
            let whose = args.whose.whose().map_err(wrong)?;
            let text = match &args.file {
                Some(file) => std::fs::read_to_string(file),
                None => std::io::read_to_string(std::io::stdin()),
            };
            let text = text.map(Zeroizing::new).map_err(|error| {
                Error::new(Kind::Failed, format!("cannot read the key: {error}"))
            })?;
            let how = keys::Add {
                no_replace: args.no_replace,
                dry_run: args.dry_run,
            };
            keys::add(system, &whose, &text, how)
        }
        KeyCommand::Retire(args) => keys::retire(system, &args.whose().map_err(wrong)?),
        KeyCommand::Apply(args) => keys::apply(system, args.force),
    }
}

fn host_id(system: &dyn System, args: &HostIdArgs) -> Result<Outcome> {
    let new = match args.set {
        None if !args.generate => None,
        Some(id) => Some(id),
        None => Some(Uuid::new_v4()),
    };
    if let Some(new) = new {
        // Targets that know the old id refuse this host under a new one, so an id is not replaced by accident. A broken
        // file has no id to lose.
        let stored = hostid::stored(system);
        let is_broken = stored.is_err();
        if let Some(id) = stored.ok().flatten().filter(|id| *id != new && !args.force) {
            let how = match args.set {
                Some(id) => format!("--set {id}"),
                None => "--generate".to_owned(),
            };
            return Err(Error::new(
                Kind::Exists,
                format!("{} holds {id} already", hostid::FILE),
            )
            .advise(format!(
                "Targets identify this host with that id. To replace it nevertheless: hcablk host-id {how} --force"
            )));
        }
        if is_broken && args.generate && !args.force {
            hostid::stored(system)?;
        }
        hostid::store(system, new)?;
    }
    let (host_id, source) = hostid::current(system)?;
    Ok(Outcome::new(Report::HostId { host_id, source }))
}
