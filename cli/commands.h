/*
 * commands.h: the sub-commands of `attn`, one file each: main's arguments from the command's name
 * on, an exit status back.
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

int cli_run(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_ladder(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_info(int argc, char **argv);

#endif
