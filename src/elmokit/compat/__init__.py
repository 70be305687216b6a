"""Old names on the one engine: code for an older ELMo library runs with its import changed.

    allennlp.modules.elmo, allennlp.commands.elmo   ->  elmokit.compat.allennlp
    bilm                                            ->  elmokit.compat.bilm_tf
    tensorflow_hub as hub                           ->  elmokit.compat.tf_hub as hub
    elmoformanylangs                                ->  elmokit.compat.elmoformanylangs
    simple_elmo                                     ->  elmokit.compat.simple_elmo

docs/migrating.md lists what differs from the old libraries, and why.
"""
